"""What Ansible tells of each task on each host, as one line of JSON: for programs, while it goes on.

Ansible loads it from beside the playbook, where ANSIBLE_STDOUT_CALLBACK=events asks for it.
"""

import json

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "events"

    def v2_runner_on_ok(self, result):
        self._tell("changed" if result._result.get("changed") else "ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not ignore_errors:
            self._tell("failed", result)

    def v2_runner_on_unreachable(self, result):
        self._tell("unreachable", result)

    def _tell(self, state, result):
        value = result._result.get
        # What a module that could not be run has left has names of its own.
        said = {"msg": value("msg"), "stderr": value("stderr") or value("module_stderr")}
        said["stdout"] = value("stdout") or value("module_stdout")
        event = {"host": result._host.get_name(), "task": result._task.get_name(), "state": state, **said}
        print(json.dumps(event, default=str), flush=True)
