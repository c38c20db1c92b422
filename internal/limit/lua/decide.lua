-- Decides about takes and counts them: all of them or none.
-- KEYS: a key for each take.
-- ARGV: 1 to count what is allowed or 0 only to look; then for each take policy, window (ms), max and n.
-- Returns for each take: 1 if it fits or 0; the hits that are surely in the window, the estimate and
-- the hits that may be in it, before new ones were counted and after others were given back; and the
-- milliseconds until the take would fit if nothing else came.
local time = redis.call('TIME')
local clock = time[1] * 1000 + math.floor(time[2] / 1000)
local states, all = {}, true
for i, key in ipairs(KEYS) do
	local a = 4 * i - 2
	local window, max, n = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
	local policy = policies[ARGV[a]]
	local s = policy.look(key, clock, window)
	s.policy, s.n, s.excess = policy, n, s.count + n - max
	s.ahead = s.now - clock -- of a key whose time waits for a clock that went back
	s.fits = n <= 0 or s.excess <= 0
	all = all and s.fits
	states[i] = s
end
local out = {}
for i, key in ipairs(KEYS) do
	local s = states[i]
	local wait = 0
	if not s.fits then
		wait = s.ahead + s.policy.wait(key, s)
	elseif all and ARGV[1] == '1' and s.n > 0 then
		s.policy.add(key, s, s.n)
	elseif all and ARGV[1] == '1' and s.n < 0 then
		s.policy.give(key, s, -s.n)
	end
	out[i] = {s.fits and 1 or 0, s.lower, s.count, s.upper, wait}
end
return out
