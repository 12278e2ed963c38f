"""Replays, from recorded games to a cloned player.

`replay_games` writes a replay file for every episode that bots or players of a run play (`ludus record`), and makes the
game that a replay names. `conversion` plays replay files again and appends what their seats saw and did to a dataset
(`ludus convert`); `playback` steps the games, `dataset_writer` writes the files.
`dataset` reads random windows of episodes from a dataset. `cloning_plan` checks a cloning before anything is written,
and `cloned_run` trains a player on such windows in a run folder (`ludus clone`).
"""
