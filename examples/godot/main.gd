extends Node
var n=0
var t=0
func _ready():
	print("args ", OS.get_cmdline_args(), " env ", OS.get_environment("LUDUS_X"))
	t=OS.get_ticks_usec()
func _physics_process(d):
	n+=1
	if n==10000:
		print((OS.get_ticks_usec()-t)/10000.0," us/tick", " ", d)
		get_tree().quit()
