-- fixed: a hash with the hits of one period. A period is the window of the clock that holds a moment, or one of
-- the calendar. The turns of a calendar come with the take: numbers and beginnings (ms) of four periods in a
-- row. A number is greater in a later period, and does not depend on when a process takes it to begin. It is
-- the date of the period's hits.
--   p  the number of the period; a key's period never goes back
--   n  its hits
--   b  the time of the first take with an id since the key's beginning, by which settlements know it
policies.fixed = (function()
	local floor, format = math.floor, string.format
	local kept = 26 * 3600 * 1000 -- after its end, because the clock can go back, and the zone can change

	local function counted(s, hits) s.lower, s.count, s.upper = hits, hits, hits end

	-- periodAt returns the number of the period that holds a moment, its end, and number and end of the next one.
	-- It returns nothing if the moment is not between the turns.
	local function periodAt(now, window, turns)
		local own = floor(now / window)
		if turns == '' or turns == 'share' then
			return own, (own + 1) * window, own + 1, (own + 2) * window
		end
		local v = {}
		for number in string.gmatch(turns, '%d+') do
			v[#v + 1] = tonumber(number)
		end
		for i = 2, #v - 2, 2 do
			if v[i] <= now and now < v[i + 2] then
				return v[i - 1], v[i + 2], v[i + 1], v[i + 4]
			end
		end
	end

	local p = {}

	function p.look(key, now, window, turns, later)
		local number, ends, nextNumber, nextEnds = periodAt(now, window, turns)
		if not number then
			return {outside = true}
		end
		local v = redis.call('HMGET', key, 'p', 'n')
		local s, stored = {now = now, window = window}, tonumber(v[1])
		if stored and stored > number and stored <= nextNumber then -- the clock or the day of the turn went back
			if stored == nextNumber then
				if not nextEnds then
					return {outside = true}
				end
				s.now, ends = ends, nextEnds
			end
			number = stored
		end
		s.number, s.date, s.ends, s.turn, s.new = number, number, ends, ends - now, stored ~= number
		-- A month from February 28 on can end three days later if it starts on another day.
		s.kept = turns:find('%d') and kept + window / 10 or math.min(window, kept)
		s.late = later > 0 and s.now + later >= ends -- a share is spent in one period
		counted(s, stored == number and tonumber(v[2]) or 0)
		return s
	end

	function p.add(key, s, n)
		redis.call('HSET', key, 'p', format('%d', s.number), 'n', format('%d', s.count + n))
		if s.new then
			redis.call('PEXPIRE', key, format('%.0f', s.turn + s.kept))
		end
	end

	p.began = hashBegan

	-- give takes hits back, but none for those of another period.
	function p.give(key, s, n, _, at)
		n = at and at ~= s.number and 0 or math.min(n, s.count)
		if n > 0 then
			redis.call('HDEL', key, '') -- removes nothing. It is not refused if Redis is full, nor is what follows it
			redis.call('HINCRBY', key, 'n', format('%d', -n))
			counted(s, s.count - n)
		end
		return n, 0, 0
	end

	function p.wait(_, s) return s.ends - s.now end

	return p
end)()
