-- Decides about takes and counts them, all or none. A take in shadow mode that does not fit blocks no other,
-- and is not counted.
-- KEYS: a key per take; if hits can be reserved, then a key per take for its limit's reservations; with ids,
-- then a key per take for its id.
-- ARGV: the mode (0: look; 1: count what is allowed; 2: count without asking, up to max; 3: give back what
-- was counted at a time or before), for several takes followed by a character per take, which is s in shadow
-- mode; then per take policy, window (ms), max, n, and a lease or nothing; with ids also an id or nothing,
-- and for a reservation its length and how long it counts after its end (ms), else 0 and 0; then in mode 3
-- the time.
-- Returns per take: 1 if it fits, else 0; the hits that are certainly in the window, the estimate, and the
-- hits that may be in it, all with those reserved, before new ones were counted and after others were given
-- back; and the milliseconds until the take would fit if no other hits came, or the time at which it was
-- counted. If hits were given back or counted without asking, also how many, and how many are still to be
-- given back. If a slot was acquired or renewed, or with ids, also the end of the lease or reservation in
-- microseconds. With ids, then 1 if the take was counted before, 2 if its id was used for another one, which
-- blocks all, else 0. If hits are reserved, then how many. Numbers before it that do not apply are 0.
--
-- Commands that need memory come before those that need none, because a full Redis (maxmemory) refuses the
-- former, but no longer after a script's first write. For the same reason an add of a policy begins with a
-- command that needs memory, and a give with one that does not.
local time = redis.call('TIME')
local clock = time[1] * 1000 + math.floor(time[2] / 1000)
local states, all = {}, true
local mode, stride = string.sub(ARGV[1], 1, 1), ids and 8 or 5
local takes = math.floor((#ARGV - 1) / stride)
for i = 1, takes do
	local a = stride * (i - 1) + 2
	local window, max, n = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
	local policy = policies[ARGV[a]]
	local s = policy.look(KEYS[i], clock, window, ARGV[a + 4])
	s.reserved = 0
	if reservations then
		s.reservations = reservations.look(KEYS[takes + i], clock)
		s.reserved = s.reservations.sum
	end
	if mode == '2' then
		n = math.max(0, math.min(n, max - s.count - s.reserved))
	end
	s.policy, s.n, s.excess = policy, n, s.count + s.reserved + n - max
	s.ahead = s.now - clock -- of a key whose time waits for a clock that went back
	s.lease = ARGV[a + 4]
	s.fits = n <= 0 or s.excess <= 0 or s.held ~= nil
	if ids and ARGV[a + 5] ~= '' then
		s.id, s.length, s.after = ARGV[a + 5], tonumber(ARGV[a + 6]), tonumber(ARGV[a + 7])
		s.record = ids.read(KEYS[2 * takes + i])
		if s.record and mode == '1' then
			s.again = s.record.n == n and (s.record.kind == 't') == (s.length == 0)
			s.fits, all = s.again, all and s.again
		end
	end
	all = all and (s.fits or string.sub(ARGV[1], i + 1, i + 1) == 's')
	states[i] = s
end
local counts, room = all and mode ~= '0', step
local at = mode == '3' and tonumber(ARGV[#ARGV]) or nil
if counts then
	for i, s in ipairs(states) do
		if s.n > 0 and s.fits and not s.again then
			if s.id and s.length > 0 then
				s.ends = clock + s.length
				reservations.add(KEYS[takes + i], s.reservations, clock, s.id, s.n, s.ends + s.after)
				ids.reserve(KEYS[2 * takes + i], clock, s.n, s.ends, s.ends + s.after)
			else
				s.policy.add(KEYS[i], s, s.n, s.lease)
				if s.id then
					ids.take(KEYS[2 * takes + i], s.n)
				end
			end
		end
	end
end

-- give gives back the hits of a take, or what was counted for it, and returns how many, how many are still to
-- be given back, and the work.
local function give(i, s)
	local id, counted, rest, work = s.id and KEYS[2 * takes + i], 0, -s.n, 0
	if s.id and mode == '3' and s.length > 0 then
		counted, rest = reservations.remove(KEYS[takes + i], s.id, rest), 0
	elseif room > 0 then
		counted, rest, work = s.policy.give(KEYS[i], s, rest, room, at, s.lease)
	end
	if s.id and mode == '3' then
		redis.call('UNLINK', id)
	elseif s.id then
		ids.take(id, s.n)
	end
	return counted, rest, work
end

-- wait returns the milliseconds until a take fits. Hits that Redis lacks can leave max no room at all.
local function wait(i, s)
	local hits = s.ahead + (s.excess > s.count and s.window or s.policy.wait(KEYS[i], s))
	if s.reserved == 0 then
		return hits
	end
	if s.excess > s.count then
		hits = math.max(hits, reservations.wait(KEYS[takes + i], clock, s.excess - s.count) or 0)
	end
	return math.min(hits, reservations.wait(KEYS[takes + i], clock, s.excess) or hits)
end

local out = {}
for i, s in ipairs(states) do
	local last, counted, rest, work = 0
	if s.again == false then
		last = 1 -- not read
	elseif not s.fits then
		last = wait(i, s)
	elseif mode == '2' then
		counted, rest = s.n, 0
	elseif s.again then
		counted, rest = 0, 0
	elseif counts and s.n > 0 then
		last = s.score and (s.held and 0 or s.score) or s.now
	elseif counts and s.n < 0 then
		counted, rest, work = give(i, s)
		room = room - work
	end
	local reserved = s.reserved
	out[i] = {s.fits and 1 or 0, s.lower + reserved, s.count + reserved, s.upper + reserved, last, counted, rest}
	if s.score or ids or reserved > 0 then
		local ends, again = s.score or 1000 * (s.ends or s.again and s.record.last or 0), s.again and 1 or s.again == false and 2 or 0
		out[i] = {s.fits and 1 or 0, s.lower + reserved, s.count + reserved, s.upper + reserved, last, counted or 0, rest or 0, ends, again, reserved}
	end
	if reservations and mode ~= '0' then
		reservations.trim(KEYS[takes + i], s.reservations)
	end
end
return out
