# frozen_string_literal: true

require_relative "setup"
require_relative "serving"
require_relative "processes"
require_relative "postgres"

# Rails as its own command starts it, with PostgreSQL.
class RailsTest < Case
  include Serving
  include Processes

  POOL = 60
  FILES = {
    "config/application.rb" => <<~RUBY,
      require "rails"
      require "active_record/railtie"
      require "action_controller/railtie"

      class Shop < Rails::Application
        config.load_defaults Rails::VERSION::STRING.to_f
        config.root = File.expand_path("..", __dir__)
        config.eager_load = true
        config.hosts.clear
        config.secret_key_base = "x" * 64
        config.logger = Logger.new($stdout, level: :error)
        routes.append { root to: "slow#show" }
      end

      class SlowController < ActionController::Base
        def show
          I18n.locale = params[:locale] || :en
          Time.use_zone(params[:zone] || "UTC") do
            ActiveRecord::Base.connection.select_value(ENV.fetch("STATEMENT"))
            render plain: [I18n.locale, Time.zone.name, Process.pid].join(" ")
          end
        end
      end
    RUBY
    "config/environment.rb" => "require_relative 'application'\nRails.application.initialize!\n",
    "config/boot.rb" => "",
    "config.ru" => "require_relative 'config/environment'\nrun Rails.application\n",
    "bin/rails" => <<~RUBY,
      APP_PATH = File.expand_path("../config/application", __dir__)
      require "rails/commands"
    RUBY
    "config/database.yml" => <<~YAML
      production:
        adapter: postgresql
        host: <%= ENV["POSTGRES"] %>
        username: postgres
        database: postgres
        pool: #{POOL}
    YAML
  }.freeze

  def test_rails_server_serves_slow_queries_side_by_side_and_keeps_requests_apart
    ENV["POSTGRES"] = Postgres.directory
    ENV["STATEMENT"] = Postgres::Gate::STATEMENT
    port = free_port
    command = %w[ruby -W0 bin/rails server -u neverblock -b 127.0.0.1 -p]
    started(*command, port.to_s, files: FILES, port: port) do
      eventually("serving", within: 25) { answer }
      2.times { ask_at_once }
      assert stop(:TERM).success?
    end
  end

  def ask_at_once
    gate = Postgres::Gate.new
    zones = %w[UTC Tokyo Paris]
    sockets = Array.new(POOL) do |n|
      fields = "Host: localhost\r\nConnection: close\r\n\r\n"
      line = "GET /?zone=#{zones[n % 3]} HTTP/1.1\r\n"
      connect.tap { |socket| socket.write(line, fields) }
    end
    gate.open_when(POOL)
    sockets.each_with_index do |socket, n|
      assert_equal [200, "en #{zones[n % 3]} #{@pid}"], parse(read_to_end(socket)).values_at(0, 2)
    end
  end
end
