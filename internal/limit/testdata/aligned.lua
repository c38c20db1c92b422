-- aligned: a hash with the hits n of the window number w, which begins at a multiple of its length.
policies.aligned = (function()
	local p = {}

	local function counted(s, hits)
		s.lower, s.count, s.upper = hits, hits, hits
	end

	function p.look(key, now, window, _, later)
		local v = redis.call('HMGET', key, 'w', 'n')
		local own, stored = math.floor(now / window), tonumber(v[1])
		local s = {now = now, date = now + later, window = window, number = own}
		if stored and stored > own and (stored - own) * window <= 2 * window then -- the clock went back
			s.now, s.number = stored * window, stored
			s.date = s.now + later
		end
		counted(s, stored == s.number and tonumber(v[2]) or 0)
		return s
	end

	function p.add(key, s, n)
		redis.call('HSET', key, 'w', string.format('%d', s.number), 'n', string.format('%d', s.count + n))
		redis.call('PEXPIRE', key, s.ahead + s.window)
	end

	function p.give(key, s, n, _, at, _, only)
		if only and math.floor(at / s.window) ~= s.number then
			return 0, 0, 0
		end
		n = math.min(n, s.count)
		redis.call('HINCRBY', key, 'n', string.format('%d', -n))
		counted(s, s.count - n)
		return n, 0, 0
	end

	function p.wait(_, s)
		return (s.number + 1) * s.window - s.now
	end

	return p
end)()
