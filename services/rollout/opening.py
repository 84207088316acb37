"""Chooses the engine.

Guarantees: torch and transformers are imported only when they are chosen.
Does not: load a policy version."""

from services.rollout import scripted_engine
from services.rollout.engine import Engine, Meter
from services.rollout.settings import RolloutSettings
from services.rollout.versions import Load
from tiltyard.objects import open_store


def open_engine(settings: RolloutSettings, meter: Meter) -> tuple[Engine, Load]:
    """The engine that the settings name, and how it loads a policy version."""
    if settings.engine == "scripted":
        script = scripted_engine.read_script(settings.script_file, share=settings.script_share)
        latency = settings.script_latency_ms / 1000
        return scripted_engine.ScriptedEngine(script, latency=latency, meter=meter), scripted_engine.load
    if not settings.objects_url:
        raise ValueError("TILTYARD_OBJECTS_URL is not set; the transformers engine loads policies from there")
    from services.rollout import transformers_engine

    engine = transformers_engine.open_engine(
        max_batch=settings.max_batch, threads=settings.torch_threads, meter=meter
    )
    checkpoints = transformers_engine.Checkpoints(
        open_store(settings.objects_url), device=settings.device, cache_dir=settings.cache_dir
    )
    return engine, checkpoints.load
