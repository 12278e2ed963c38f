# Plays tables of a game for Ludus: connects to the program that has started the engine, and answers its requests.
# The protocol is in docs/game-server.md.
#
# `table_scene` is a scene whose root has SPEC, BOTS, TICKS, `reset`, `to_act`, `act`, `decided`, `observation` and
# `bot_act`, and `legal` if a head is masked; see pong/table.gd. Parts of an observation are Vector or Planes, heads
# are Choice or Box. Add this node to the tree where `is_wanted()` is true.
extends Node

const PROTOCOL = 1
const KEY_BYTES = 16

var table_scene: PackedScene
var _server = StreamPeerTCP.new()
var _spec
var _tables = []
var _ticks_left = 0


# Whether Ludus has started this engine.
static func is_wanted():
	return OS.has_environment("LUDUS_ENGINE")


func _ready():
	process_priority = -1000  # before the tables in every frame
	var example = table_scene.instance()
	_spec = example.SPEC
	example.free()
	var wrong = _unknown_shapes()
	var address = OS.get_environment("LUDUS_ENGINE").split(":")
	_server.connect_to_host(address[0], int(address[1]))
	while _server.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_msec(1)
	if _server.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		_quit("nobody answers at LUDUS_ENGINE=%s" % OS.get_environment("LUDUS_ENGINE"))
		return
	_server.set_no_delay(true)
	var key = OS.get_environment("LUDUS_ENGINE_KEY")
	var key_bytes = PoolByteArray()
	for place in KEY_BYTES:
		key_bytes.append(("0x" + key.substr(place * 2, 2)).hex_to_int())
	_server.put_data(key_bytes)
	if wrong != "":
		_quit(wrong)


# Engines have a clock of their own. Here it stands still while Ludus thinks, and goes on for TICKS frames after a step.
func _physics_process(_delta):
	if _server.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		return
	if _ticks_left > 0:
		_ticks_left -= 1
		if _ticks_left > 0:
			return
		for table in _tables:
			if not table.truncated and not table.get_meta("ended"):
				table.decided()
		_answer({"message": "view"}, _view(_tables))
	while _ticks_left == 0:
		var frame = _read_frame()
		if frame == null:
			get_tree().quit()  # Ludus has ended the game
			return
		var problem = _obey(frame[0], frame[1])
		if problem != "":
			_answer({"message": "error", "text": problem})


# One request. Returns what is wrong with it, or "".
func _obey(request, arrays):
	match request.get("message"):
		"hello":
			return _hello(request)
		"reset":
			var chosen = []
			for row in int(request["rows"]):
				arrays.seek(row * 8)
				chosen.append(_tables[arrays.get_64()])
			for row in len(chosen):
				arrays.seek((len(chosen) + row) * 8)
				chosen[row].reset(arrays.get_64())
			_answer({"message": "view"}, _view(chosen))
		"step":
			_step(arrays)
		"act":
			return _bots_act(request, arrays)
		_:
			return "this engine does not know %s" % JSON.print(request)
	return ""


func _hello(request):
	if int(request["protocol"]) != PROTOCOL:
		return "this engine speaks protocol %d, not %d" % [PROTOCOL, int(request["protocol"])]
	for option in request["options"]:
		return "%s has no option '%s'" % [_spec["name"], option]
	var example = table_scene.instance()
	var bots = example.BOTS
	example.free()
	for _number in int(request["tables"]):
		var world = Viewport.new()  # tables must not meet each other
		world.world_2d = World2D.new()
		world.render_target_update_mode = Viewport.UPDATE_DISABLED
		var table = table_scene.instance()
		table.set_meta("ended", false)
		world.add_child(table)
		add_child(world)
		_tables.append(table)
	_answer({"message": "welcome", "protocol": PROTOCOL, "server": "Godot " + Engine.get_version_info()["string"],
		"game": _spec["name"], "spec": _spec, "bots": bots, "pictures": false})
	return ""


func _step(arrays):
	var chosen = []
	for _table in _tables:
		chosen.append([])
	var place = 0
	for kind in len(_spec["kinds"]):
		var seats = _seats_of(kind)
		for head in _spec["kinds"][kind]["action"]:
			place = _aligned(place)
			arrays.seek(place)
			var facts = _spec["kinds"][kind]["action"][head]
			for number in len(_tables):
				for seat in seats:
					chosen[number].append([seat, head, _read_action(arrays, facts)])
			place += len(_tables) * len(seats) * 4 * int(facts.get("size", 1))
	for number in len(_tables):
		var table = _tables[number]
		table.set_meta("ended", table.over or table.truncated)
		if table.get_meta("ended"):
			continue
		var actions = {}
		for one in chosen[number]:
			if not one[0] in actions:
				actions[one[0]] = {}
			actions[one[0]][one[1]] = one[2]
		var acting = table.to_act()
		for seat in len(acting):
			table.reward[seat] = 0.0
			if acting[seat]:
				table.act(seat, actions[seat])
	_ticks_left = _tables[0].TICKS if _tables else 1


func _bots_act(request, arrays):
	var rows = int(request["rows"])
	if not request["bot"] in (_tables[0].BOTS if _tables else []):
		return "%s has no bot '%s'" % [_spec["name"], request["bot"]]
	var random = RandomNumberGenerator.new()
	arrays.seek(rows * 16)
	random.seed = arrays.get_64()
	var kind = 0
	var actions = []
	for row in rows:
		arrays.seek(row * 8)
		var table = _tables[arrays.get_64()]
		arrays.seek((rows + row) * 8)
		var seat = arrays.get_64()
		kind = int(_spec["seats"][seat])
		actions.append(table.bot_act(request["bot"], seat, random))
	var content = StreamPeerBuffer.new()
	for head in _spec["kinds"][kind]["action"]:
		_align(content)
		for action in actions:
			if _spec["kinds"][kind]["action"][head]["type"] == "Box":
				_put_floats(content, action[head])
			else:
				content.put_32(action[head])
	_answer({"message": "actions"}, content.data_array)
	return ""


# --- arrays ---

# The number of a Choice, or the list of numbers of a Box.
func _read_action(arrays, facts):
	if facts["type"] != "Box":
		return arrays.get_32()
	var numbers = []
	for _number in int(facts["size"]):
		numbers.append(arrays.get_float())
	return numbers


func _view(tables):
	var view = StreamPeerBuffer.new()
	for kind in len(_spec["kinds"]):
		var facts = _spec["kinds"][kind]
		var seen = []
		for table in tables:
			for seat in _seats_of(kind):
				seen.append(table.observation(seat))
		for part in facts["observation"]:
			_align(view)
			var is_bytes = facts["observation"][part]["dtype"] == "uint8"
			for one in seen:
				for number in one[part]:
					if is_bytes:
						view.put_u8(int(number))
					else:
						view.put_float(number)
	for kind in len(_spec["kinds"]):
		var heads = _spec["kinds"][kind]["action"]
		for head in heads:
			if heads[head].get("masked", false):
				_align(view)
				for table in tables:
					for seat in _seats_of(kind):
						_put_flags(view, table.legal(seat)[head])
	_align(view)
	for table in tables:
		_put_flags(view, table.to_act())
	_align(view)
	for table in tables:
		_put_floats(view, table.reward)
	_align(view)
	for table in tables:
		view.put_u8(int(table.over))
	_align(view)
	for table in tables:
		view.put_u8(int(table.truncated))
	_align(view)
	for table in tables:
		_put_floats(view, table.score)
	_align(view)
	for table in tables:
		view.put_64(0)  # the clock, for timed games
	_align(view)
	return view.data_array


func _put_flags(content, flags):
	for flag in flags:
		content.put_u8(int(flag))


func _put_floats(content, numbers):
	for number in numbers:
		content.put_float(number)


func _align(content):
	for _byte in _aligned(content.get_position()) - content.get_position():
		content.put_u8(0)


func _aligned(place):
	return (place + 7) / 8 * 8


func _seats_of(kind):
	var seats = []
	for seat in len(_spec["seats"]):
		if int(_spec["seats"][seat]) == kind:
			seats.append(seat)
	return seats


# What of the game this file cannot send, or "".
func _unknown_shapes():
	for kind in _spec["kinds"]:
		for part in kind["observation"]:
			var facts = kind["observation"][part]
			if not facts["type"] in ["Vector", "Planes"] or not facts["dtype"] in ["float32", "uint8"]:
				return "part '%s' is neither Vector nor Planes of float32 or uint8" % part
		for head in kind["action"]:
			if not kind["action"][head]["type"] in ["Choice", "Box"]:
				return "head '%s' is neither Choice nor Box" % head
		if kind["rewards"] or kind["critic"] or _spec["timed"]:
			return "further rewards, parts for the critic and timed games are not sent"
	return ""


# --- frames: the length, then the protobuf message `Frame` ---

func _answer(header, arrays = PoolByteArray()):
	var text = JSON.print(header).to_utf8()
	var frame = StreamPeerBuffer.new()
	frame.put_u8(0x0a)
	_put_varint(frame, len(text))
	frame.put_data(text)
	frame.put_u8(0x12)
	_put_varint(frame, len(arrays))
	frame.put_data(arrays)
	var length = StreamPeerBuffer.new()
	length.put_u32(frame.get_size())
	_server.put_data(length.data_array + frame.data_array)


# Header and arrays of the next request; null at the end. Waits.
func _read_frame():
	var told = _server.get_data(4)
	if told[0] != OK:
		return null
	var length = StreamPeerBuffer.new()
	length.data_array = told[1]
	var content = _server.get_data(length.get_u32())
	if content[0] != OK:
		return null
	var frame = StreamPeerBuffer.new()
	frame.data_array = content[1]
	var header = {}
	var arrays = StreamPeerBuffer.new()
	while frame.get_position() < frame.get_size():
		var tag = frame.get_u8()
		var field = frame.get_data(_get_varint(frame))[1]
		if tag == 0x0a:
			header = JSON.parse(field.get_string_from_utf8()).result
		elif tag == 0x12:
			arrays.data_array = field
	return [header, arrays]


func _put_varint(content, value):
	while value > 0x7f:
		content.put_u8(value & 0x7f | 0x80)
		value >>= 7
	content.put_u8(value)


func _get_varint(content):
	var value = 0
	var shift = 0
	while true:
		var byte = content.get_u8()
		value |= (byte & 0x7f) << shift
		if byte < 0x80:
			return value
		shift += 7


func _quit(why):
	printerr("ludus/tables.gd: " + why)
	_server.disconnect_from_host()
	get_tree().quit(1)
