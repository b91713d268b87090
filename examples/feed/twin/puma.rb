# One process, and a thread for each request, for as long as the request lasts.
count = Integer(ENV.fetch("THREADS", 32))
threads count, count
bind "tcp://#{ENV.fetch("HOST", "127.0.0.1")}:#{ENV.fetch("PORT", 3000)}"
environment "production"
raise_exception_on_sigterm false
