-- log: a sorted set with a member per hit. The score is the hit's date, which is never before that of the
-- newest. Members count upwards from 10^15, so they are unique, all of the same length, and stored as integers.
-- Before all hits is b, if a take had an id. Its score is the negative time of the first, by which settlements
-- know the key.
policies.log = (function()
	local function counted(s, hits)
		s.lower, s.count, s.upper = hits, hits, hits
	end

	local p = {bounded = true} -- a key holds at most twice max, however often it is settled

	function p.look(key, now, window, lease, later)
		local s = {now = now, date = now + later, window = window, member = 1e15}
		local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
		local hits = 0
		if newest[1] then
			local date = tonumber(newest[2])
			local t = date - ahead(window, lease)
			s.forget = t - now > window
			if not s.forget then
				s.now = math.max(now, t)
				s.date, s.later = math.max(s.now + later, date), date > s.now
				s.member = newest[1] + 1
				hits = redis.call('ZCOUNT', key, '(' .. s.now - window, '+inf')
			end
		end
		counted(s, hits)
		return s
	end

	-- add removes as many hits that have left the window as it adds, and some more. Those that it leaves are
	-- before the window, and do not count.
	function p.add(key, s, n)
		if s.forget then
			redis.call('ZADD', key, 'XX', s.now, 0) -- changes nothing; is refused if Redis is full, as UNLINK is not
			redis.call('UNLINK', key)
		end
		local left = redis.call('ZCARD', key) - s.count
		local members = {}
		for i = 0, n - 1 do
			members[#members + 1] = s.date
			members[#members + 1] = string.format('%.0f', s.member + i)
		end
		redis.call('ZADD', key, unpack(members))
		local first = left > 0 and p.began(key) and 1 or 0
		if left > first then
			redis.call('ZREMRANGEBYRANK', key, first, math.min(left, first + n + step) - 1)
		end
		redis.call('PEXPIRE', key, s.expiry)
	end

	-- began returns what tells the key from one that was reset or restarted. With a stamp it has that at least.
	function p.began(key, stamp)
		if stamp then
			redis.call('ZADD', key, 'NX', '-' .. stamp, 'b')
		end
		return redis.call('ZSCORE', key, 'b')
	end

	-- give removes the newest hits, or the newest of those that were counted at a time or before, or only then.
	function p.give(key, s, n, room, at, _, only)
		local newer = 0
		if at then
			newer = math.min(s.count, redis.call('ZCOUNT', key, '(' .. at, '+inf'))
		end
		n = math.min(n, s.count - newer)
		if only then
			n = math.min(n, redis.call('ZCOUNT', key, at, at))
		end
		local given, work = math.min(n, room), 0
		if n == s.count then
			given = n
			redis.call('UNLINK', key)
		elseif given > 0 then
			work = given
			redis.call('ZREMRANGEBYRANK', key, -newer - given, -newer - 1)
			redis.call('PEXPIRE', key, s.expiry)
		end
		counted(s, s.count - given)
		return given, n - given, work
	end

	-- wait returns when enough of the oldest hits have left.
	function p.wait(key, s)
		local gone = redis.call('ZCARD', key) - s.count + s.excess - 1
		local last = redis.call('ZRANGE', key, gone, gone, 'WITHSCORES')
		return last[2] + s.window - s.now
	end

	return p
end)()
