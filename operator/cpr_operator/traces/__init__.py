"""Traces of recoveries and saves, for OpenTelemetry."""
