-- reservations: what is reserved of a limit, beside its hits, whatever the policy that counts them. A sorted
-- set has a member n:id per reservation. Its score is the time (ms) until which the n hits count: the end of
-- the reservation, or a window after it if one that is not settled counts as hits. The member s has the sum
-- of all n as a negative score, so it is the first.
reservations = (function()
	local function text(n) return string.format('%.0f', n) end

	local function member(n, id) return text(n) .. ':' .. id end

	-- drop returns how many hits count no longer. It begins with a command that a full Redis does not refuse, nor
	-- what follows it.
	local function drop(key, members)
		local n = 0
		for _, one in ipairs(members) do
			if redis.call('ZREM', key, one) == 1 then
				n = n + string.match(one, '^%d+')
			end
		end
		if n > 0 and redis.call('ZINCRBY', key, n, 's') == '0' then
			redis.call('UNLINK', key)
		end
		return n
	end

	-- keep has the key last until a time at least.
	local function keep(key, isNew, ms)
		if isNew then
			redis.call('PEXPIRE', key, text(ms))
		else
			redis.call('PEXPIRE', key, text(ms), 'GT')
		end
	end

	local r = {}

	-- look returns the sum of those that count now. Of many that have ended, some count until trim has
	-- removed others.
	function r.look(key, now)
		local sum = redis.call('ZSCORE', key, 's')
		local s = {isNew = not sum, all = sum and -sum or 0, sum = sum and -sum or 0}
		if sum then
			s.ended = redis.call('ZRANGEBYSCORE', key, 0, text(now), 'LIMIT', 0, math.min(step, 1000))
			for _, ended in ipairs(s.ended) do
				s.sum = s.sum - string.match(ended, '^%d+')
			end
		end
		return s
	end

	function r.trim(key, s)
		if s.ended and #s.ended > 0 then
			drop(key, s.ended)
		end
	end

	-- add replaces one of the same id that has ended, if trim has not removed it.
	function r.add(key, s, now, id, n, till)
		local own, all = member(n, id), s.all
		if s.ended and redis.call('ZSCORE', key, own) then
			all = all - n
			for i = #s.ended, 1, -1 do
				if s.ended[i] == own then
					table.remove(s.ended, i)
				end
			end
		end
		redis.call('ZADD', key, text(-all - n), 's', text(till), own)
		keep(key, s.isNew, till - now + 1)
	end

	-- has reports whether the reservation exists. A reset of the key removes it.
	function r.has(key, id, n) return redis.call('ZSCORE', key, member(n, id)) ~= false end

	function r.extend(key, now, id, n, till)
		redis.call('ZADD', key, 'XX', text(till), member(n, id))
		keep(key, false, till - now + 1)
	end

	function r.remove(key, id, n) return drop(key, {member(n, id)}) end

	-- wait returns the milliseconds until n of the reserved hits count no longer, if none is settled, or nil
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
