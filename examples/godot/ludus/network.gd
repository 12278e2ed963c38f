# An agent of `ludus export RUN PLAYER --to agent.json`, evaluated in plain code: no Python, no library.
#
#	var agent = Network.new()
#	var problem = agent.open("res://agent.json", Table.SPEC)   # "" if all is well
#	var action = agent.act(seat, observation)                   # the most probable option
#	agent.forget()                                              # a new episode begins
#
# The format is in docs/take-an-agent-out.md. Vectors, linear layers, an LSTM and one choice are computed here; planes
# are not. Numbers are doubles, so results differ from PyTorch's by rounding alone.
extends Reference

const FORMAT = 1
const ACTIVATIONS = ["tanh", "relu", "silu", "elu"]

var _networks = []  # one for each kind of seat
var _network_of_seat = []
var _values = []  # of each network
var _memories = {}  # seat -> [hidden, cell]


# Reads an agent for this game. Returns what is wrong with it, or "".
func open(path, spec):
	var file = File.new()
	if file.open(path, File.READ) != OK:
		return "%s cannot be read" % path
	var parsed = JSON.parse(file.get_as_text())
	if parsed.error != OK or not parsed.result is Dictionary:
		return "%s is no JSON object" % path
	var agent = parsed.result
	if not agent.has("networks"):
		return "%s is no agent of `ludus export --to FILE.json`" % path
	if int(agent["format"]) != FORMAT:
		return "%s has format %d, and this reads format %d" % [path, int(agent["format"]), FORMAT]
	if agent["game"] != spec["name"]:
		return "%s plays %s, and this is %s" % [path, agent["game"], spec["name"]]
	for number in len(agent["networks"]):
		var network = agent["networks"][number]
		var seen = spec["kinds"][number]["observation"]
		for part in network["parts"]:
			if part.has("convolutions"):
				return "%s: part '%s' is planes, which this does not compute" % [path, part["name"]]
			if not seen.has(part["name"]) or int(seen[part["name"]]["size"]) != int(part["shape"][0]):
				return "%s: part '%s' of %d numbers is not what this game shows" % [
					path, part["name"], int(part["shape"][0])]
		if not network["activation"] in ACTIVATIONS:
			return "%s: activation '%s' is not among %s" % [path, network["activation"], PoolStringArray(ACTIVATIONS).join(", ")]
		_values.append(_floats(network["values"]))
	_networks = agent["networks"]
	_network_of_seat = agent["network_of_seat"]
	return ""


# A new episode begins.
func forget():
	_memories = {}


# The most probable option of a head without a mask; where options may be illegal, choose among `logits` yourself.
# `observation`: part -> numbers.
func act(seat, observation):
	return best(seat, logits(seat, observation))


func best(seat, scores):
	var highest = 0
	for option in len(scores):
		if scores[option] > scores[highest]:
			highest = option
	return {_networks[int(_network_of_seat[seat])]["head"]["name"]: highest}


# A score for each option; an option is as probable as exp(score). Goes into the memory, so ask once for each decision.
func logits(seat, observation):
	var number = int(_network_of_seat[seat])
	var network = _networks[number]
	var features = []
	for part in network["parts"]:
		for value in observation[part["name"]]:
			features.append(value / part["scale"])
	for layer in network["trunk"]:
		features = _activated(network["activation"], _linear(number, layer, features))
	if network["memory"] != null:
		features = _remembered(number, seat, features)
	return _linear(number, network["head"], features)


func _linear(number, layer, inputs):
	var values = _values[number]
	var columns = len(inputs)
	var at = int(layer["weight"]["start"])
	var outputs = []
	for row in int(layer["weight"]["shape"][0]):
		var sum = 0.0 if layer["bias"] == null else values[int(layer["bias"]["start"]) + row]
		for column in columns:
			sum += values[at + column] * inputs[column]
		at += columns
		outputs.append(sum)
	return outputs


func _activated(activation, numbers):
	for place in len(numbers):
		var x = numbers[place]
		match activation:
			"tanh":
				numbers[place] = tanh(x)
			"relu":
				numbers[place] = max(x, 0.0)
			"silu":
				numbers[place] = x * _sigmoid(x)
			"elu":
				numbers[place] = x if x > 0 else exp(x) - 1.0
	return numbers


func _remembered(number, seat, inputs):
	var memory = _networks[number]["memory"]
	var size = int(memory["size"])
	if not seat in _memories:
		_memories[seat] = [_zeros(size), _zeros(size)]
	var hidden = _memories[seat][0]
	var cell = _memories[seat][1]
	var gates = _linear(number, memory["inputs"], inputs)
	var before = _linear(number, memory["recurrent"], hidden)
	for unit in size:
		var enter = _sigmoid(gates[unit] + before[unit])
		var keep = _sigmoid(gates[size + unit] + before[size + unit])
		var next = tanh(gates[2 * size + unit] + before[2 * size + unit])
		var leave = _sigmoid(gates[3 * size + unit] + before[3 * size + unit])
		cell[unit] = keep * cell[unit] + enter * next
		hidden[unit] = leave * tanh(cell[unit])
	return hidden


func _sigmoid(x):
	return 1.0 / (1.0 + exp(-x))


func _zeros(size):
	var zeros = []
	for _number in size:
		zeros.append(0.0)
	return zeros


# Float32 numbers, little-endian, in base64.
func _floats(text):
	var content = StreamPeerBuffer.new()
	content.data_array = Marshalls.base64_to_raw(text)
	var floats = []
	for _number in content.get_size() / 4:
		floats.append(content.get_float())
	return floats
