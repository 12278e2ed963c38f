# Trains with Ludus if Ludus has started the engine. Else plays rallies between two players:
#
#	godot3 --path examples/godot -- --left human --right agent.json      (in a window; W and S move the left paddle)
#	godot3-server --path examples/godot --fixed-fps 60 -- --left agent.json --right chase --rallies 100
#
# --record FILE writes every decision of an agent as a line of JSON.
extends Node2D

const LudusTables = preload("res://ludus/tables.gd")
const Network = preload("res://ludus/network.gd")
const Table = preload("res://pong/table.tscn")
const USAGE = "usage: [--left PLAYER] [--right PLAYER] [--rallies N] [--seed N] [--record FILE]; a PLAYER is human, chase or a FILE.json of `ludus export`"

var _options = {"left": "human", "right": "chase", "rallies": "0", "seed": "1", "record": ""}
var _table
var _agents = [null, null]
var _record = null
var _frames = 0
var _rallies = 0
var _wins = [0, 0]


func _ready():
	if LudusTables.is_wanted():
		var tables = LudusTables.new()
		tables.table_scene = Table
		add_child(tables)
		set_physics_process(false)
		return
	var problem = _read_options()
	if problem != "":
		printerr(problem)
		set_physics_process(false)
		get_tree().quit(2)
		return
	process_priority = -1  # decisions come before the table moves
	_begin()


func _read_options():
	var words = Array(OS.get_cmdline_args())
	words = words.slice(words.find("--") + 1, len(words)) if "--" in words else []
	for place in range(0, len(words), 2):
		var name = words[place].trim_prefix("--")
		if not _options.has(name) or place + 1 == len(words):
			return "unknown option, or no value: %s\n%s" % [words[place], USAGE]
		_options[name] = words[place + 1]
	_table = Table.instance()
	add_child(_table)
	for seat in 2:
		var player = _player(seat)
		if player.ends_with(".json"):
			_agents[seat] = Network.new()
			var problem = _agents[seat].open(player, _table.SPEC)
			if problem != "":
				return problem
		elif not player in ["human", "chase"]:
			return "no player %s\n%s" % [player, USAGE]
	if _options["record"] != "":
		_record = File.new()
		if _record.open(_options["record"], File.WRITE) != OK:
			return "%s cannot be written" % _options["record"]
	return ""


func _player(seat):
	return _options["left" if seat == 0 else "right"]


func _begin():
	_frames = 0
	for agent in _agents:
		if agent != null:
			agent.forget()
	_table.reset(int(_options["seed"]) + _rallies)


func _physics_process(_delta):
	if _frames > 0 and _frames % _table.TICKS == 0:
		_table.decided()
	if _table.over or _table.truncated:
		_rally_ended()
		return
	if _frames % _table.TICKS == 0:
		for seat in 2:
			_table.act(seat, _decision(seat))
	_frames += 1


func _decision(seat):
	if _player(seat) == "human":
		return {"move": _table.UP if Input.is_key_pressed(KEY_W) else _table.DOWN if Input.is_key_pressed(KEY_S) else _table.STAY}
	if _agents[seat] == null:
		return _table.bot_act(_player(seat), seat, null)
	var seen = _table.observation(seat)
	var scores = _agents[seat].logits(seat, seen)
	var action = _agents[seat].best(seat, scores)
	if _record != null:
		_record.store_line(JSON.print({"rally": _rallies, "seat": seat, "observation": _exact(seen["field"]),
			"logits": _exact(scores), "action": action["move"]}))
	return action


# Float32 numbers in base64: JSON of Godot 3 rounds numbers.
func _exact(numbers):
	var content = StreamPeerBuffer.new()
	for number in numbers:
		content.put_float(number)
	return Marshalls.raw_to_base64(content.data_array)


func _rally_ended():
	for seat in 2:
		_wins[seat] += int(_table.score[seat] > 0)
	_rallies += 1
	if _rallies != int(_options["rallies"]):
		_begin()
		return
	if _record != null:
		_record.close()
	print("rallies %d, won by %s %d, by %s %d" % [_rallies, _player(0), _wins[0], _player(1), _wins[1]])
	set_physics_process(false)
	get_tree().quit()
