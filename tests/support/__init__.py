"""What conformance and end-to-end tests share: real broker processes, certificates, other people's programs."""
