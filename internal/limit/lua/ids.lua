-- ids: what became of the take or reservation with an id. A string is
--   t <n>                    a take of n hits; a negative n was given back
--   r <n> <end>              a reservation of n hits, which is open until its end (ms)
--   s <n> <end> <settled>    a reservation that was settled with so many hits
-- It is kept for ten minutes after the take or the settlement. That of a reservation that was not settled is
-- kept for as long after it has ceased to count, so that no id is in reservations twice.
ids = (function()
	local kept = 600000

	local i = {}

	function i.read(key)
		local text = redis.call('GET', key)
		if not text then
			return nil
		end
		local kind, n, last, settled = string.match(text, '^(%a) (%-?%d+) ?(%d*) ?(%d*)$')
		return {kind = kind, n = tonumber(n), last = tonumber(last), settled = tonumber(settled)}
	end

	function i.take(key, n)
		redis.call('SET', key, string.format('t %.0f', n), 'PX', kept)
	end

	-- till is when the reservation ceases to count.
	function i.reserve(key, now, n, last, till)
		redis.call('SET', key, string.format('r %.0f %.0f', n, last), 'PX', string.format('%.0f', till - now + kept))
	end

	function i.settle(key, record, n)
		redis.call('SET', key, string.format('s %.0f %.0f %.0f', record.n, record.last, n), 'PX', kept)
	end

	return i
end)()
