"""A bot for tic-tac-toe as a program: the centre, then corners, then sides. It does not need Ludus.

ludus check tic_tac_toe --bot program:examples/bots/centre.py
"""

import json
import sys

ORDER = [4, 0, 2, 6, 8, 1, 3, 5, 7]
wins = {}  # by seat

for line in sys.stdin:
    request = json.loads(line)
    if request["type"] == "hello":
        print(f"playing {request['game']['name']}", file=sys.stderr)  # into the log of the actor
        answer = {"protocol": 1}
    else:
        for episode in request["ended"]:
            if episode["score"] and episode["score"][episode["seat"]] > 0:
                wins[episode["seat"]] = wins.get(episode["seat"], 0) + 1
        moves = [min(row["legal"]["move"], key=ORDER.index) for row in request["rows"]]
        answer = {"id": request["id"], "actions": [{"move": move} for move in moves]}
    print(json.dumps(answer), flush=True)
