# frozen_string_literal: true

# Rails as small as it gets: each request asks PostgreSQL to wait as long as `wait` says.
require "logger"
require "rails"
require "active_record/railtie"
require "action_controller/railtie"

class Slow < Rails::Application
  config.load_defaults Rails::VERSION::STRING.to_f
  config.eager_load = true
  config.hosts.clear
  config.secret_key_base = "x" * 64
  config.logger = Logger.new($stderr)
  config.log_level = :error
  routes.append { root to: "slow#show" }
end

class SlowController < ActionController::Base
  def show
    wait = params[:wait].to_f
    render plain: ActiveRecord::Base.connection.select_value("SELECT pg_sleep(#{wait}), 7").to_s
  end
end

Slow.initialize!
run Slow
