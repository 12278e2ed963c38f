"""Ludus trains leagues of agents for competitive games.

    import ludus

    run = ludus.train("connect_four", budget=2e6)      # a recipe, a game, an Experiment or FILE.py:NAME
    run = ludus.Run("runs/connect_four-001")           # an existing run; reading it executes nothing
    print(run.league())
    run.evaluate("main@best", "alpha_beta_2", games=512)

    agent = ludus.load_agent(run, "main@best")
    action = agent.act(observation, legal)

Further names are in `ludus.games`, `ludus.league`, `ludus.models` and `ludus.algorithms`. Every name is
loaded when it is first used. Training and agents of a run need PyTorch; exported agents, games, leagues and
reading a run do not.
"""

from __future__ import annotations

from ludus.public_names import lazy, listing
from ludus.system.machine import installed_version

__getattr__, __dir__, __all__ = lazy()
__version__ = installed_version()
__doc__ = f"{__doc__}{listing()}\n"
