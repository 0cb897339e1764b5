"""Run a PyTorch model with its states replaced: what the network does with some modes alone, or without them."""

try:
    from kann.analysis.bypassed import BypassEffects
    from kann.analysis.live_effects import Effects
    from kann.live.bypass_measuring import bypass_effects
    from kann.live.bypassing import bypass
    from kann.live.interventions import intervene
    from kann.live.measuring import effects
    from kann.live.monitoring import Monitor
except ImportError as error:
    raise ImportError(f"interventions need torch ({error}): pip install 'kann[torch]'") from error

__all__ = ["BypassEffects", "Effects", "Monitor", "bypass", "bypass_effects", "effects", "intervene"]
