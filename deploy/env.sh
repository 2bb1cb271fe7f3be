# What `ray start` gets on every node of cluster.yaml, and with it jobs, tasks and actors. Sourced, also by bash -i.
export PATH="$HOME/raycomp/.venv/bin:$PATH"
# Who has not the token of ~/.ray/auth_token is turned away.
export RAY_AUTH_MODE=token
# `ray job stop` sends SIGTERM; a run then clears up, which takes longer than the 3 s that Ray would wait.
export RAY_JOB_STOP_WAIT_TIME_S=60
ulimit -n 65536
# A node that starts is busy, and Ray gives up after seconds: up to five tries, two minutes in all.
again() {
    for wait_s in 5 15 30 60; do
        "$@" && return
        ray stop
        sleep "$wait_s"
    done
    "$@"
}
