-- Decides about takes and counts them, or settles them, all or none. A take in shadow mode that does not fit
-- blocks no other, and is not counted.
-- KEYS: a key per take; with ids, then a key per take for its id.
-- ARGV: the mode (0: look; 1: count what is allowed; 2: count without asking, up to max; 3: give back what
-- was counted at a time or before; 4: settle; 5: count a share, dated at its end), for several takes
-- followed by a character per take, which is s in shadow mode; then per take policy, window (ms), max, n,
-- and a lease, or share if the limit has shares, or the turns of a calendar, or nothing; with ids also an
-- id or nothing, how long it is remembered (ms), and 1 if nothing may have happened under it, and 2 more if
-- counters get its hits when it is settled; then in mode 3 the time, and in mode 5 how long a share lasts
-- (ms).
-- Returns per take: 1 if it fits, else 0; the hits that are certainly in the window, the estimate, and the
-- hits that may be in it, all before new ones were counted and after others were given back or settled; and
-- the milliseconds until the take would fit if no other hits came, or the time at which it was counted. If
-- hits were given back or counted without asking, also how many, and how many are still to be given back.
-- If a slot was acquired or renewed, or with ids, also the end of the lease in microseconds, or if a period
-- ends, the milliseconds until then. With ids, then 1 if the same was done before, 2 if the id was used for
-- something else, which blocks all, 3 if it is unknown, else 0; the hits that were counted for it before,
-- or by settling; one more than the number it was settled with, or 0 or less; the hits of a settlement that
-- were too many to count; and by how much it changed the take's number in counters. Numbers before it that
-- do not apply are 0.
--
-- Commands that need memory come before those that need none, because a full Redis (maxmemory) refuses the
-- former, but no longer after a script's first write. For the same reason an add of a policy begins with a
-- command that needs memory, and a give with one that does not.
local time = redis.call('TIME')
local clock = time[1] * 1000 + math.floor(time[2] / 1000)
local states, all = {}, true
local mode, stride = string.sub(ARGV[1], 1, 1), ids and 8 or 5
local at = mode == '3' and tonumber(ARGV[#ARGV])
local later = mode == '5' and tonumber(ARGV[#ARGV]) or 0
local takes = math.floor((#ARGV - 1) / stride)
for i = 1, takes do
	local a = stride * (i - 1) + 2
	local window, max, n = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
	local policy = policies[ARGV[a]]
	local s = policy.look(KEYS[i], clock, window, ARGV[a + 4], later)
	if s.outside then
		return {err = 'TURNS ' .. string.format('%.0f', clock)}
	end
	if mode == '2' then
		n = math.max(0, math.min(n, max - s.count))
	end
	s.policy, s.n, s.max, s.excess = policy, n, max, s.count + n - max
	s.ahead = s.now - clock -- of a key whose time waits for a clock that went back
	s.expiry = s.date - clock + window
	s.lease = ARGV[a + 4]
	s.fits = n <= 0 or s.excess <= 0 and not s.late or s.held ~= nil
	if ids and ARGV[a + 5] ~= '' then
		local flags = tonumber(ARGV[a + 7])
		ids.look(s, KEYS[takes + i], mode, tonumber(ARGV[a + 6]), flags % 2 == 1, flags >= 2)
	end
	all = all and not s.conflict and (s.fits or string.sub(ARGV[1], i + 1, i + 1) == 's')
	states[i] = s
end
local counts, room = all and mode ~= '0', step
local stamp = time[1] .. '.' .. time[2]
if counts then
	for i, s in ipairs(states) do
		local adds = s.fits and s.n > 0 and not s.again and mode ~= '4'
		if adds then
			s.policy.add(KEYS[i], s, s.n, s.lease)
		end
		if s.record and s.fits and (mode == '4' or not s.again or s.record.base > 0 and s.n < 0) then
			ids.write(KEYS[i], s, adds and stamp)
		end
	end
end

-- give gives back the hits of a take, or what was counted for it, and returns how many, how many are still to
-- be given back, and the work. The record of an id has the latter, so that a repetition continues. Hits that
-- are dated ahead come last: a process may still spend those of a share.
local function give(i, s)
	local n = s.record and s.record.base or -s.n
	local counted, rest, work = 0, n, 0
	local function upTo(time)
		local given
		given, rest, work = s.policy.give(KEYS[i], s, n - counted, room, time, s.lease)
		counted = counted + given
	end
	if n > 0 and room > 0 then
		upTo(at or s.later and s.now)
		if s.later and not at and rest == 0 and counted < n then
			upTo()
		end
	end
	if s.record then
		s.record.base = rest
		ids.write(KEYS[i], s)
	elseif s.id then
		redis.call('UNLINK', s.id)
	end
	return counted, rest, work
end

local out = {}
for i, s in ipairs(states) do
	local last, counted, rest, work = 0
	if s.conflict or s.unknown then
		last = 1 -- not read
	elseif not s.fits then
		last = s.ahead + (s.excess > s.count and s.window or s.policy.wait(KEYS[i], s))
	elseif mode == '2' then
		counted, rest = s.n, 0
	elseif counts and mode == '4' then
		ids.settle(KEYS[i], s, s.policy.bounded and 2 * s.max or math.huge, stamp)
	elseif counts and s.n < 0 and (not s.again or s.record.base > 0) then
		counted, rest, work = give(i, s)
		room = room - work
	elseif counts and s.n > 0 and not s.again then
		last = s.score and (s.held and 0 or s.score) or s.date
	end
	local fits = s.fits and 1 or 0
	out[i] = {fits, s.lower, s.count, s.upper, last, counted, rest}
	if s.score or s.turn or ids then
		local r = s.record or {extra = 0, base = 0, settled = -1}
		local code = s.again and 1 or s.conflict and 2 or s.unknown and 3 or 0
		local own = r.extra + (mode == '1' and s.n > 0 and r.base or 0)
		out[i] = {
			fits, s.lower, s.count, s.upper, last, counted or 0, rest or 0, s.score or s.turn or 0, code, own,
			r.settled + 1, s.beyond or 0, s.change or 0,
		}
	end
end
return out
