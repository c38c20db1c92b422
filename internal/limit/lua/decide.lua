-- Decides about takes and counts them, all or none. A take in shadow mode that does not fit blocks no other,
-- and is not counted.
-- KEYS: a key per take.
-- ARGV: the mode (0: look; 1: count what is allowed; 2: count without asking, up to max; 3: give back what
-- was counted at a time or before), for several takes followed by a character per take, which is s in shadow
-- mode; then per take policy, window (ms), max, n, and a lease or nothing; then in mode 3 the time.
-- Returns per take: 1 if it fits, else 0; the hits that are certainly in the window, the estimate, and the
-- hits that may be in it, before new ones were counted and after others were given back; and the milliseconds
-- until the take would fit if no other hits came, or the time at which it was counted. If hits were given
-- back or counted without asking, also how many, and how many are still to be given back. If a slot was
-- acquired or renewed, also the end of its lease in microseconds.
--
-- Commands that need memory come before those that need none, because a full Redis (maxmemory) refuses the
-- former, but no longer after a script's first write. For the same reason an add of a policy begins with a
-- command that needs memory, and a give with one that does not.
local time = redis.call('TIME')
local clock = time[1] * 1000 + math.floor(time[2] / 1000)
local states, all = {}, true
local mode = string.sub(ARGV[1], 1, 1)
for i, key in ipairs(KEYS) do
	local a = 5 * i - 3
	local window, max, n = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
	local policy = policies[ARGV[a]]
	local s = policy.look(key, clock, window, ARGV[a + 4])
	if mode == '2' then
		n = math.max(0, math.min(n, max - s.count))
	end
	s.policy, s.n, s.excess = policy, n, s.count + n - max
	s.ahead = s.now - clock -- of a key whose time waits for a clock that went back
	s.lease = ARGV[a + 4]
	s.fits = n <= 0 or s.excess <= 0 or s.held ~= nil
	all = all and (s.fits or string.sub(ARGV[1], i + 1, i + 1) == 's')
	states[i] = s
end
local counts, room = all and mode ~= '0', step
local at = mode == '3' and tonumber(ARGV[#ARGV]) or nil
if counts then
	for i, key in ipairs(KEYS) do
		local s = states[i]
		if s.n > 0 and s.fits then
			s.policy.add(key, s, s.n, s.lease)
		end
	end
end
local out = {}
for i, key in ipairs(KEYS) do
	local s = states[i]
	local last, counted, rest, work = 0
	if not s.fits then
		-- Hits that Redis lacks can leave max no room at all.
		last = s.ahead + (s.excess > s.count and s.window or s.policy.wait(key, s))
	elseif mode == '2' then
		counted, rest = s.n, 0
	elseif counts and s.n > 0 then
		last = s.score and (s.held and 0 or s.score) or s.now
	elseif counts and s.n < 0 then
		counted, rest = 0, -s.n
		if room > 0 then
			counted, rest, work = s.policy.give(key, s, rest, room, at, s.lease)
			room = room - work
		end
	end
	out[i] = {s.fits and 1 or 0, s.lower, s.count, s.upper, last, counted, rest}
	if s.score then
		out[i] = {1, s.lower, s.count, s.upper, last, counted or 0, rest or 0, s.score}
	end
end
return out
