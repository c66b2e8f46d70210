"""The parts of the loopback hub; tests/loopback_hub.py puts them together and is what tests import."""
