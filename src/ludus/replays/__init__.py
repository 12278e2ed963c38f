"""Replays, from recorded games to a cloned player.

`recording` writes a replay file for every episode that bots or players of a run play (`ludus record`).
`conversion` plays replay files again and appends what their seats saw and did to a dataset (`ludus convert`);
`playback` steps the games, `replay_games` makes the game that a replay names, `dataset_writer` writes the files.
`dataset` reads random windows of episodes from a dataset. `cloning` trains a player on such windows,
`cloning_plan` checks a cloning before anything is written, and `cloned_run` carries it out in a run folder
(`ludus clone`).
"""
