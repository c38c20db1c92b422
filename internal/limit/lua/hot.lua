-- The common case of one take of cells, in two thirds of the time: the take is counted and fits, and the key
-- is new or no cell has left the window since its last hit. It does what decide and cells would do. In every
-- other case it does nothing, and they continue.
if #ARGV == 6 and ARGV[1] == '1' then
	local call, floor, format = redis.call, math.floor, string.format
	local time = call('TIME')
	local now, window, n = time[1] * 1000 + floor(time[2] / 1000), tonumber(ARGV[3]), tonumber(ARGV[5])
	local size, from = math.ceil(window / 60), now - window
	local edge, current = floor(from / size), floor(now / size)
	local field = format('%d', current % 64)
	local v = call('HMGET', KEYS[1], 't', 's', field, format('%d', edge % 64))
	local t = tonumber(v[1])
	local new, sum, filled, cut = not t, tonumber(v[2]) or 0, tonumber(v[3]) or 0, tonumber(v[4]) or 0
	local lower = sum - cut
	local count = lower + math.ceil(cut * ((edge + 1) * size - from) / size)
	local fits = n > 0 and count + n <= tonumber(ARGV[4]) and cut * size < 2 ^ 53 -- a double holds that product
	if (new or t <= now and floor((t - window) / size) == edge) and fits then
		call('HSET', KEYS[1], 't', format('%d', now), 's', format('%d', sum + n), field, format('%d', filled + n))
		if new or floor(t / size) < current then
			call('PEXPIRE', KEYS[1], window + 5 * size)
		end
		return {{1, lower, count, sum, now}}
	end
end
