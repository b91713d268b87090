# frozen_string_literal: true

module NeverBlock
  # A process that a request forks goes on without the loop, whose descriptors it shares with its
  # parent: there everything blocks, as in any program.
  module LoopStaysWithParent
    def _fork
      pid = super
      scheduler = Fiber.scheduler
      if pid.zero? && scheduler.is_a?(Scheduler)
        scheduler.leave_to_parent
        Fiber.set_scheduler(nil)
      end
      pid
    end
  end
  Process.singleton_class.prepend(LoopStaysWithParent)
end
