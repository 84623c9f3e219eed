"""The lab: an engine, a base image, hosts to break and the faults for that. `README.md` says how it is used."""
