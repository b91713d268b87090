# frozen_string_literal: true

module NeverBlock
  class Scheduler
    # One suspended fiber. Whatever wakes it finds no fiber any more once it goes on, so that a late
    # event, or a timer that rang meanwhile, never resumes it a second time.
    class Wait
      attr_accessor :fiber, :value, :events

      def initialize(fiber, events = 0)
        @fiber = fiber
        @events = events
        @queued = false
      end

      # Returns whether it is to be resumed, which it is once.
      def take(value)
        return false if @queued || @fiber.nil?

        @value = value
        @queued = true
      end
    end

    # One IO in the selector: the fibers that wait for it, and at most one handler that is called
    # each time the IO is readable. It is registered while there is one of them.
    class Watch
      READ = IO::READABLE | IO::PRIORITY
      WRITE = IO::WRITABLE
      READY = { r: READ, w: WRITE, rw: READ | WRITE }.freeze
      INTERESTS = { 0 => nil, READ => :r, WRITE => :w, READ | WRITE => :rw }.freeze

      attr_reader :io, :fileno, :handler

      def initialize(scheduler, io)
        @scheduler = scheduler
        @io = io
        @fileno = io.to_io.fileno
        @waits = []
        @handler = nil
        @events = 0
        @monitor = nil
      end

      def handler=(handler)
        @handler = handler
        update
      end

      def add(wait)
        @waits << wait
        update
      end

      def remove(wait)
        @waits.delete(wait)
        update
      end

      def used? = !@handler.nil? || !@waits.empty?

      def waits? = !@waits.empty?

      def ready
        events = READY.fetch(@monitor.readiness || :rw)
        @waits.each { |wait| notify(wait, events) } unless @waits.empty?
        @handler.readable if @handler && events.anybits?(READ)
      end

      # Wakes everybody: the IO was closed, which they find out when they use it.
      def abandon
        @waits.each { |wait| @scheduler.wake(wait, wait.events) }
        @waits.clear
        @handler = nil
        update
      end

      private

      def notify(wait, events)
        found = wait.events & events
        @scheduler.wake(wait, found) unless found.zero?
      end

      def update
        events = @handler ? READ : 0
        @waits.each { |wait| events |= interest(wait.events) }
        return if events == @events

        @events = events
        set(INTERESTS.fetch(events))
      end

      def interest(events)
        (events.anybits?(READ) ? READ : 0) | (events & WRITE)
      end

      def set(interests)
        if interests.nil?
          @monitor.close
          @monitor = nil
        elsif @monitor
          @monitor.interests = interests
        else
          @monitor = @scheduler.register(@io, interests)
          @monitor.value = self
        end
      end
    end
  end
end
