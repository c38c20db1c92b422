-- stream: a Redis stream with an entry per take. An entry's id is its date. Its fields are the weight n and
-- the sum c of all weights so far. So c - n of the first entry in the window is the weight that has left it,
-- and the window has c of the newest entry less that.
--
-- Entries cannot be changed, and a new one needs a larger id than any before, even a deleted one. So a
-- give-back ends with an entry whose c is the smaller sum: its c - n is the sum that remains up to the entry
-- before.
policies.stream = (function()
	local function entry(reply)
		if not reply[1] then
			return nil
		end
		local id, f = reply[1][1], reply[1][2]
		local ms, seq = string.match(id, '^(%d+)-(%d+)$')
		return {id = id, ms = tonumber(ms), seq = tonumber(seq), n = tonumber(f[2]), c = tonumber(f[4])}
	end

	-- upTo is the sum of all weights up to a time, and the entry that follows it.
	local function upTo(key, s, ms)
		local e = entry(redis.call('XRANGE', key, ms + 1, '+', 'COUNT', 1))
		return e and e.c - e.n or s.newest.c, e
	end

	local function counted(s, hits)
		s.lower, s.count, s.upper = hits, hits, hits
	end

	local function following(e) return e.ms .. '-' .. e.seq + 1 end

	local p = {}

	function p.look(key, now, window, lease, later)
		local s = {now = now, date = now + later, window = window}
		local hits = 0
		s.newest = entry(redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1))
		local t = s.newest and s.newest.ms - ahead(window, lease)
		s.forget = t and t - now > window
		if t and not s.forget then
			s.now = math.max(now, t)
			s.date, s.later = math.max(s.now + later, s.newest.ms), s.newest.ms > s.now
			s.left, s.oldest = upTo(key, s, s.now - window)
			hits = s.newest.c - s.left
		end
		counted(s, hits)
		return s
	end

	function p.add(key, s, n)
		local id, c = s.date .. '-0', n
		if s.forget then
			-- is refused if Redis is full, as UNLINK is not
			redis.call('XADD', key, following(s.newest), 'n', n, 'c', c)
			redis.call('UNLINK', key)
		elseif s.newest then
			c = s.newest.c + n
			if s.newest.ms == s.date then
				id = following(s.newest)
			end
		end
		redis.call('XADD', key, 'MINID', '=', s.now - s.window + 1, id, 'n', n, 'c', c)
		redis.call('PEXPIRE', key, s.expiry)
	end

	-- give takes back from the newest entries, or from the newest of those that were counted at a time or
	-- before. Later hits then get the time of the newest. An entry is ten times the work of a hit of log.
	function p.give(key, s, n, room, at)
		if not at and n >= s.count then
			redis.call('UNLINK', key)
			n = s.count
			counted(s, 0)
			return n, 0, 0
		end
		n = math.min(n, s.count)
		local most = math.max(2, math.ceil(room / 10)) -- the newest may have no hits left
		if not at then
			most = math.min(most, 2 * n + 2) -- every other entry has a hit at least
		end
		local entries = redis.call('XREVRANGE', key, '+', s.now - s.window + 1, 'COUNT', most)
		local ids, c, newer, given = {}, s.newest.c, 0, 0
		for _, reply in ipairs(entries) do
			local e = entry({reply})
			local weight = c - (e.c - e.n) -- what remains of it
			if at and e.ms > at then
				newer = newer + weight
			elseif weight <= n - given then
				given = given + weight
			else
				c, given = c - (n - given), n
				break
			end
			ids[#ids + 1], c = e.id, c - weight
		end
		local rest = #entries == most and n - given or 0
		if given == 0 and rest == 0 then
			return 0, 0, room
		elseif given == s.count then -- the key goes, as above
			redis.call('UNLINK', key)
			counted(s, 0)
			return given, 0, 10 * #entries
		end
		redis.call('PEXPIRE', key, s.expiry) -- first: it is not refused if Redis is full, nor is what follows it
		if #ids > 0 then
			redis.call('XDEL', key, unpack(ids))
		end
		redis.call('XADD', key, following(s.newest), 'n', newer, 'c', c + newer)
		s.newest = {ms = s.newest.ms, seq = s.newest.seq + 1, n = newer, c = c + newer}
		counted(s, s.count - given)
		return given, rest, 10 * #entries
	end

	-- wait looks for the first moment up to which enough weight had come.
	function p.wait(key, s)
		local low, high = s.oldest.ms, s.newest.ms
		while low < high do
			local middle = math.floor((low + high) / 2)
			if upTo(key, s, middle) - s.left >= s.excess then
				high = middle
			else
				low = middle + 1
			end
		end
		return high + s.window - s.now
	end

	return p
end)()
