-- The common cases of one take of fixed: the take fits, and the key has hits of this period, or none yet. In every
-- other case it does nothing, and decide and fixed continue, which would do the same.
if #ARGV == 6 and ARGV[1] == '1' then
	local call, format = redis.call, string.format
	local time, n, window = call('TIME'), tonumber(ARGV[5]), tonumber(ARGV[3])
	local now, number, begin, ends = time[1] * 1000 + math.floor(time[2] / 1000)
	local kept = 26 * 3600 * 1000
	if ARGV[6] == '' or ARGV[6] == 'share' then
		begin = now - now % window
		number, ends, kept = format('%d', begin / window), begin + window, math.min(window, kept)
	else
		number, begin, ends = string.match(ARGV[6], '^ %d+ %d+ (%d+) (%d+) %d+ (%d+)')
		kept = kept + window / 10
	end
	local v = call('HMGET', KEYS[1], 'p', 'n')
	local left, known = ends - now, v[1] == number
	local count = known and tonumber(v[2]) or 0
	if (known or not v[1] or tonumber(v[1]) < tonumber(number)) and left > 0 and now >= tonumber(begin) and n > 0 and
		count + n <= tonumber(ARGV[4]) then
		if known then
			call('HINCRBY', KEYS[1], 'n', ARGV[5])
		else
			call('HSET', KEYS[1], 'p', number, 'n', ARGV[5])
			call('PEXPIRE', KEYS[1], format('%.0f', left + kept))
		end
		return {{1, count, count, count, tonumber(number), 0, 0, left}}
	end
end
