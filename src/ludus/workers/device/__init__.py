"""Training on one device: tables, acting, trajectories, losses and optimiser of all learning players.

An iteration is `Engine.iterate` in engine.py; it plays with rollout.py and learns with learning.py.
"""
