-- stream: a Redis stream with an entry for each take. An entry's id is its time. Its fields are the weight n
-- and the sum c of all weights so far, so the first and the last entry say what is in the window.
policies.stream = (function()
	local function entry(reply)
		if not reply[1] then
			return nil
		end
		local id, f = reply[1][1], reply[1][2]
		local ms, seq = string.match(id, '^(%d+)-(%d+)$')
		return {id = id, ms = tonumber(ms), seq = tonumber(seq), n = tonumber(f[2]), c = tonumber(f[4])}
	end

	local function upTo(key, ms) return entry(redis.call('XREVRANGE', key, ms, '-', 'COUNT', 1)) end

	local function counted(s, hits)
		s.lower, s.count, s.upper = hits, hits, hits
	end

	local function trim(key, s) redis.call('XTRIM', key, 'MINID', s.now - s.window + 1) end

	-- A stream takes ids in their order only, also after the newest entries have been deleted. If it refuses an
	-- id, what it holds is written into a new stream, before that entry.
	local function append(key, id, n, c)
		local reply = redis.pcall('XADD', key, id, 'n', n, 'c', c)
		if not reply.err then
			return
		end
		local entries = redis.call('XRANGE', key, '-', '+')
		redis.call('DEL', key)
		for _, reply in ipairs(entries) do
			local e = entry({reply})
			redis.call('XADD', key, e.id, 'n', e.n, 'c', e.c)
		end
		redis.call('XADD', key, id, 'n', n, 'c', c)
	end

	local p = {}

	function p.look(key, now, window)
		local s = {now = now, window = window}
		s.newest = upTo(key, '+')
		if s.newest and s.newest.ms - now > window then
			s.forget, s.newest = true, nil
		end
		local hits = 0
		if s.newest then
			s.now = math.max(now, s.newest.ms)
			s.oldest = entry(redis.call('XRANGE', key, s.now - window + 1, '+', 'COUNT', 1))
			if s.oldest then
				hits = s.newest.c - s.oldest.c + s.oldest.n
			end
		end
		counted(s, hits)
		return s
	end

	function p.add(key, s, n)
		if s.forget then
			redis.call('DEL', key)
		end
		local seq, c = 0, n
		if s.newest then
			c = s.newest.c + n
			if s.newest.ms == s.now then
				seq = s.newest.seq + 1
			end
		end
		trim(key, s)
		append(key, s.now .. '-' .. seq, n, c)
		redis.call('PEXPIRE', key, s.ahead + s.window)
	end

	-- give takes back from the newest entries.
	function p.give(key, s, n)
		if s.count == 0 then
			redis.call('DEL', key) -- what is there has left the window
			return
		end
		trim(key, s) -- or hits could come back, if the time of the newest entry that remains is an earlier one
		n = math.min(n, s.count)
		local left = n
		while left > 0 do
			local e = upTo(key, '+')
			redis.call('XDEL', key, e.id)
			if e.n > left then
				append(key, e.ms .. '-' .. e.seq + 1, e.n - left, e.c - left)
			end
			left = left - e.n
		end
		if n == s.count then
			redis.call('DEL', key)
		else
			redis.call('PEXPIRE', key, s.ahead + s.window)
		end
		counted(s, s.count - n)
	end

	-- wait looks for the first moment up to which enough weight had come.
	function p.wait(key, s)
		local before = s.oldest.c - s.oldest.n
		local low, high = s.oldest.ms, s.newest.ms
		while low < high do
			local middle = math.floor((low + high) / 2)
			if upTo(key, middle).c - before >= s.excess then
				high = middle
			else
				low = middle + 1
			end
		end
		return high + s.window - s.now
	end

	return p
end)()
