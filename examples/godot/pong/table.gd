# Pong: two paddles, a ball, one rally. The side that misses the ball has lost. Every hit makes the ball faster, and where
# it meets the paddle decides its angle.
#
# What Ludus needs of a table is below "For Ludus"; the rest is an ordinary Godot game.
extends Node2D

const FIELD = Vector2(640, 360)
const PADDLE = Vector2(6, 30)  # half of its size
const BALL = 8.0  # radius
const PADDLE_SPEED = 240.0  # pixels a second
const FIRST_SPEED = 280.0
const FASTER = 1.1  # with every hit
const TOP_SPEED = 900.0
const STEEPEST = deg2rad(60)
const STAY = 0
const UP = 1
const DOWN = 2

onready var paddles = [$Left, $Right]
onready var ball = $Ball

var velocity = Vector2()
var moves = [STAY, STAY]
var over = true
var truncated = false
var decisions = 0
var reward = [0.0, 0.0]
var score = [0.0, 0.0]


func _physics_process(delta):
	if over or truncated:
		return
	for seat in 2:
		var way = [0.0, -1.0, 1.0][moves[seat]]
		paddles[seat].position.y = clamp(
			paddles[seat].position.y + way * PADDLE_SPEED * delta, PADDLE.y, FIELD.y - PADDLE.y)
	var hit = ball.move_and_collide(velocity * delta)
	if hit != null:
		if hit.collider in paddles:
			_leave_paddle(hit.collider)
		else:
			velocity = velocity.bounce(hit.normal)
	if ball.position.x < 0 or ball.position.x > FIELD.x:
		_end(0 if ball.position.x > FIELD.x else 1)
	update()


func _leave_paddle(paddle):
	var offset = clamp((ball.position.y - paddle.position.y) / (PADDLE.y + BALL), -1, 1)
	var side = 1.0 if paddle == paddles[0] else -1.0
	velocity = Vector2(side, 0).rotated(side * offset * STEEPEST) * min(velocity.length() * FASTER, TOP_SPEED)


func _end(winner):
	over = true
	score = [-1.0, -1.0]
	score[winner] = 1.0
	reward = score.duplicate()


func _draw():
	draw_rect(Rect2(Vector2(), FIELD), Color("14181f"))
	draw_line(Vector2(FIELD.x / 2, 0), Vector2(FIELD.x / 2, FIELD.y), Color("2f3a48"), 2)
	for paddle in paddles:
		draw_rect(Rect2(paddle.position - PADDLE, PADDLE * 2), Color("e8ecf2"))
	draw_circle(ball.position, BALL, Color("ffb454"))


# --- For Ludus ---

const LENGTH = 300  # decisions, then the rally is cut off
const TICKS = 6  # physics frames for each decision: ten decisions a second

const SPEC = {
	"name": "godot_pong",
	"kinds": [{
		"name": "player",
		"observation": {"field": {"type": "Vector", "size": 6, "dtype": "float32"}},
		"critic": {},
		"action": {"move": {"type": "Choice", "num": 3, "when": null, "masked": false}},
		"rewards": [],
	}],
	"seats": [0, 0],
	"teams": [0, 1],
	"max_length": LENGTH,
	"zero_sum": true,
	"reward_is_score": true,
	"timed": false,
}
const BOTS = ["chase"]


# A new rally begins. What happens in it must depend on the seed and on the actions alone.
func reset(new_seed):
	var random = RandomNumberGenerator.new()
	random.seed = new_seed
	for paddle in paddles:
		paddle.position.y = FIELD.y / 2
	ball.position = Vector2(FIELD.x / 2, FIELD.y * random.randf_range(0.25, 0.75))
	var side = 1.0 if random.randi() % 2 == 0 else -1.0
	velocity = Vector2(side, 0).rotated(random.randf_range(-0.6, 0.6)) * FIRST_SPEED
	moves = [STAY, STAY]
	over = false
	truncated = false
	decisions = 0
	reward = [0.0, 0.0]
	score = [0.0, 0.0]
	update()


# Which seats must decide now.
func to_act():
	return [not over and not truncated, not over and not truncated]


# A seat has decided. The engine goes on for TICKS frames after that.
func act(seat, action):
	moves[seat] = action["move"]


# The frames of a decision have passed.
func decided():
	decisions += 1
	truncated = not over and decisions >= LENGTH


# What a seat sees, part by part. Both see the field from their own side, so that one network plays both.
func observation(seat):
	var side = 1.0 if seat == 0 else -1.0
	return {"field": [
		side * (ball.position.x / FIELD.x * 2 - 1),
		ball.position.y / FIELD.y * 2 - 1,
		side * velocity.x / TOP_SPEED,
		velocity.y / TOP_SPEED,
		paddles[seat].position.y / FIELD.y * 2 - 1,
		paddles[1 - seat].position.y / FIELD.y * 2 - 1,
	]}


# A scripted player, such as the AI that a game has already: it goes where the ball is.
func bot_act(bot, seat, _random):
	assert(bot == "chase")
	var away = ball.position.y - paddles[seat].position.y
	if abs(away) < PADDLE.y / 2:
		return {"move": STAY}
	return {"move": UP if away < 0 else DOWN}
