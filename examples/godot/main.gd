# Trains with Ludus if Ludus has started the engine, else shows a rally between two players.
extends Node2D

const LudusTables = preload("res://ludus/tables.gd")
const Table = preload("res://pong/table.tscn")


func _ready():
	if LudusTables.is_wanted():
		var tables = LudusTables.new()
		tables.table_scene = Table
		add_child(tables)
