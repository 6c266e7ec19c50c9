"""The load once more under the engine's profiler; its traces, typed. May import quantization and below."""
