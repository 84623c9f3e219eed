"""Tells what happened to every message: Pollux journals, audit trails and ledgers on Spark. See docs/pipeline.md."""
