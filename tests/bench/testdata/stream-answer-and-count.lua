local now = redis.call('TIME')
local from = now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[1]
local count = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], string.format('%d', from), '+')) do
	count = count + entry[2][2]
end
redis.call('XADD', KEYS[1], 'MINID', '~', string.format('%d', from), '*', 'count', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return count
