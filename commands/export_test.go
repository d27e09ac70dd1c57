package commands

const EnoughPolled = enoughPolled
