local now = redis.call('TIME')
local from = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000) - ARGV[1])
local count = 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], from, '+')) do
	count = count + entry[2][2]
end
if count + ARGV[3] > tonumber(ARGV[2]) then
	return 0
end
redis.call('XADD', KEYS[1], 'MINID', from, '*', 'count', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
