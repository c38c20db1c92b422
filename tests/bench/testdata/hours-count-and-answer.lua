local h = tonumber(ARGV[1])
local total = redis.call('INCR', KEYS[1] .. h)
redis.call('EXPIRE', KEYS[1] .. h, 86400)
for _ = 1, 23 do
	h = (h + 24) % 25
	total = total + (redis.call('GET', KEYS[1] .. h) or 0)
end
return total
