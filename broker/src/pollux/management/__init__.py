"""HTTP: health, metrics, the JSON API."""
