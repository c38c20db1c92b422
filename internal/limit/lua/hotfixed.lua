-- The common case of one take of fixed: the key has hits of this period, and the take fits. In every other case
-- it does nothing, and decide and fixed continue, which would do the same.
if #ARGV == 6 and ARGV[1] == '1' then
	local call, format = redis.call, string.format
	local time, n = call('TIME'), tonumber(ARGV[5])
	local now, number, begin, ends = time[1] * 1000 + math.floor(time[2] / 1000)
	if ARGV[6] == '' or ARGV[6] == 'share' then
		local window = tonumber(ARGV[3])
		begin = now - now % window
		number, ends = format('%d', begin / window), begin + window
	else
		number, begin, ends = string.match(ARGV[6], '^ %d+ %d+ (%d+) (%d+) %d+ (%d+)')
	end
	local v = call('HMGET', KEYS[1], 'p', 'n')
	local left = ends - now
	if v[1] == number and left > 0 and now >= tonumber(begin) and n > 0 and v[2] + n <= tonumber(ARGV[4]) then
		call('HINCRBY', KEYS[1], 'n', ARGV[5])
		local count = tonumber(v[2])
		return {{1, count, count, count, tonumber(number), 0, 0, left}}
	end
end
