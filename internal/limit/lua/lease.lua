-- Renews a lease, or ends it.
-- KEYS: the key. ARGV: renew, release, or adopt, which renews even a lease that was not held; the window
-- (ms), the name of the lease, and the policy.
-- Returns 1 if the lease was held, else 0; the milliseconds until it ends; and its new score.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local policy, key, lease = policies[ARGV[4]], KEYS[1], ARGV[3]
local s = policy.look(key, now, tonumber(ARGV[2]), lease)
if not s.held and ARGV[1] ~= 'adopt' then
	return {0, 0, 0}
elseif ARGV[1] == 'release' then
	redis.call('ZREM', key, lease)
	return {1, 0, 0}
end
policy.add(key, s, 1, lease)
return {1, math.floor(s.score / 1000) - now, s.score}
