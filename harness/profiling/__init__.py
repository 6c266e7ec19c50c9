"""The load once more under the engine's profiler; its traces, typed. May import rates and below."""
