# frozen_string_literal: true

require_relative "feed"
require_relative "live"

Feed.start
Live.start
run ->(env) { env["PATH_INFO"] == "/live" ? Live.call(env) : Feed::Api.call(env) }
