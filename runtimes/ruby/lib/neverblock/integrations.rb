# frozen_string_literal: true

module NeverBlock
  # What other libraries need to be told, once the application has loaded them.
  module Integrations
    def self.install
      require_relative "active_record" if defined?(::ActiveRecord::Base)
    end
  end
end
