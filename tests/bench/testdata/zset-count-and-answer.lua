local member = redis.call('INCR', KEYS[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[2])
redis.call('ZADD', KEYS[1], ARGV[1], member)
return redis.call('ZCOUNT', KEYS[1], '-inf', '+inf')
