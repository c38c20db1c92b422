-- reservations: what is reserved of a limit, beside its hits, whatever the policy that counts them. A sorted
-- set has a member n:id per reservation. Its score is the time (ms) until which the n hits count: the end of
-- the reservation, or a window after it if one that nobody settles counts as hits. The member s has the sum
-- of all n as a negative score, so it is the first.
reservations = (function()
	local function text(n) return string.format('%.0f', n) end

	local function member(n, id) return text(n) .. ':' .. id end

	-- drop begins with a command that a full Redis does not refuse, nor what follows it.
	local function drop(key, members, n)
		redis.call('ZREM', key, unpack(members))
		if redis.call('ZCARD', key) == 1 then
			redis.call('UNLINK', key)
		else
			redis.call('ZINCRBY', key, n, 's')
		end
	end

	local function expire(key, now)
		local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
		redis.call('PEXPIRE', key, math.max(last[2] - now, 0) + 1)
	end

	local r = {}

	-- look returns the sum of those that count now. Of many that have ended, some count until trim has
	-- removed others.
	function r.look(key, now)
		local sum = redis.call('ZSCORE', key, 's')
		local s = {sum = sum and -sum or 0, ended = {}, gone = 0}
		if sum then
			s.ended = redis.call('ZRANGEBYSCORE', key, 0, text(now), 'LIMIT', 0, math.min(step, 1000))
			for _, ended in ipairs(s.ended) do
				s.gone = s.gone + string.match(ended, '^%d+')
			end
			s.sum = s.sum - s.gone
		end
		return s
	end

	function r.trim(key, s)
		if #s.ended > 0 then
			drop(key, s.ended, s.gone)
		end
	end

	function r.add(key, now, id, n, last)
		redis.call('ZADD', key, text(last), member(n, id))
		redis.call('ZINCRBY', key, -n, 's')
		expire(key, now)
	end

	-- extend reports whether the reservation counts.
	function r.extend(key, now, id, n, last)
		if not redis.call('ZSCORE', key, member(n, id)) then
			return false
		end
		redis.call('ZADD', key, 'XX', text(last), member(n, id))
		expire(key, now)
		return true
	end

	-- remove returns how many hits count no longer.
	function r.remove(key, id, n)
		if not redis.call('ZSCORE', key, member(n, id)) then
			return 0
		end
		drop(key, {member(n, id)}, n)
		return n
	end

	-- wait returns the milliseconds until n of the reserved hits count no longer, if nobody settles any, or nil
	-- if that takes the ends of more than a thousand reservations.
	function r.wait(key, now, n)
		local all = redis.call('ZRANGEBYSCORE', key, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
		for i = 1, #all, 2 do
			n = n - string.match(all[i], '^%d+')
			if n <= 0 then
				return all[i + 1] - now
			end
		end
		return nil
	end

	return r
end)()
