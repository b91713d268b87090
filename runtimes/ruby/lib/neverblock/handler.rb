# frozen_string_literal: true

require_relative "command"

module NeverBlock
  # What `rackup -s neverblock` and `rails server -u neverblock` call.
  module Handler
    HOST = "localhost"

    class << self
      def run(app, **options)
        command = Command.new(settings(options), app: app)
        yield command if block_given?
        command.run
      end

      def valid_options
        { "Host=HOST" => "Hostname to listen on (default: #{HOST})",
          "Port=PORT" => "Port to listen on (default: #{Command::PORT})",
          "Fibers=COUNT" => "Requests at a time (default: #{Limits::FIBERS_MAX})",
          "Workers=COUNT" => "Processes (default: 1)" }
      end

      private

      def settings(options)
        settings = Command.parse([])
        host = options[:Host] || HOST
        host = "[#{host}]" if host.include?(":")
        settings.addresses.replace(["tcp://#{host}:#{options[:Port] || Command::PORT}"])
        settings.fibers_max = Integer(options[:Fibers]) if options[:Fibers]
        settings.workers = Integer(options[:Workers]) if options[:Workers]
        settings.environment = options[:environment].to_s if options[:environment]
        settings
      end
    end
  end
end
